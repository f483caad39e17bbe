"""One file, one quantity: installed as ``ddoctor.probes`` and found by the harness."""
