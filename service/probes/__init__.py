"""Programs that look at one thing outside this machine and print what they saw as JSON; `doctor` runs them apart."""
