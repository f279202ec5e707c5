"""Publish artifacts on the Hub."""
