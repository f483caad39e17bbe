"""One file, one cause: installed as ``ddoctor.checks`` and found by the engine."""
