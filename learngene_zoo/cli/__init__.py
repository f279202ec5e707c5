"""The command line. Every command imports the modules that it needs when it runs."""
