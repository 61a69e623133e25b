"""Search for better numbers: spaces, studies and sweeps."""
