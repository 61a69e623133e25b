"""Makes what is match what should be: the only writer of observed state and the only driver of Ray. A process."""
