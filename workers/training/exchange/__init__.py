"""How gradients travel: flat buckets that leave while backward still runs, and the schemes that carry them."""
