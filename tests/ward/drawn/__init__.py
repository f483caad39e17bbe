"""Scripts that nobody wrote: composed of small parts, all of them drawn from a seed."""
