"""Questions about a flow: how far it is, why it goes no further, what a step was made of."""
