"""The Hugging Face Hub: one client, the files of a repository, and their manifest."""
