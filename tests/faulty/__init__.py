"""Probes that end badly or behave oddly, named by their modules; and one that is sound."""
