"""Number formats for compute: autocast, what stays in fp32 under it, and loss scaling."""
