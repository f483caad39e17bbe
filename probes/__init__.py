"""One file, one quantity: installed as ``ddoctor.probes`` and discovered by name."""
