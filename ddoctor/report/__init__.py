"""The faces of a report: terminal, JSON, Markdown, HTML. They see only data."""
