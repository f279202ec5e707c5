"""The command line. Cold: every command imports what it needs when it runs."""
