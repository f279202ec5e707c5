"""Methods that train a learngene by distillation from an ancestry model."""
