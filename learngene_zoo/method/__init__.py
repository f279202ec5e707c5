"""The interface of methods: the contract of extractors and expanders, their records, and sizes."""
