"""`lgzoo show`: methods, learngenes, models, tasks and suites described."""
