"""Rendezvous of the hosts, and coordination of the ranks of a probe or a recorded run."""
