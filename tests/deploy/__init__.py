"""What deploys the service, held against the code that it deploys."""
