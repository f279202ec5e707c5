"""What lies on disk: learngenes, descendants, ancestry models, their cards, the shelf and the Hub."""
