"""Methods that select, scale or combine an ancestry model's weights."""
