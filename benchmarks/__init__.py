"""What ddoctor claims about speed, measured side by side; `make bench`."""
