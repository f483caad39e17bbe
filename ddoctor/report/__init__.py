"""The output formats of a report: terminal, JSON, Markdown, HTML. They show data, judge nothing."""
