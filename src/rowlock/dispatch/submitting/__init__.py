"""What a service calls: submissions, their ceiling, and their cancellation."""
