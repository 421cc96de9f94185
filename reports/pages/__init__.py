"""What stands in the reports: a page per kind of result, each a reports.document.Report."""
