"""ddoctor finds the one cause behind a slow, hanging or failing distributed run, and the fix."""
