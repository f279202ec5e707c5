"""Methods that copy whole blocks of an ancestry model."""
