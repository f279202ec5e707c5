"""Images without labels: `opening.open_images`."""
