"""The suite `vtab`: the 19 tasks of VTAB-1k."""
