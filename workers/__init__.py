"""What trains: the contract (spec, task, plan, status), control on Ray, training in torch."""
