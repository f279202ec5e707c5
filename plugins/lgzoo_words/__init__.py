"""The suite `words`: sentences made by rules, and real texts from packages."""
