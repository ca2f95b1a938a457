"""The wake-up, from a service's commit to the fetcher, in this process and in other replicas."""
