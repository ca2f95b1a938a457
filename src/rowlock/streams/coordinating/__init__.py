"""The coordinator of a flow: what is seen to beside the steps, and never on their path."""
