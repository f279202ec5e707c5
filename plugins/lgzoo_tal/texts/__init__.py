"""Hypernetworks for models of texts: graphs, embeddings, sets of architectures."""
