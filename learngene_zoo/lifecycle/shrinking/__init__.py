"""The verb `shrink`: one command from a pretrained model and a budget to a finished model."""
