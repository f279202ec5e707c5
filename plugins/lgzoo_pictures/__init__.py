"""The suite `pictures`: real photographs and drawings that package managers install."""
