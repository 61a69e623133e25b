"""Built-in training tasks, written as any user would write them."""
