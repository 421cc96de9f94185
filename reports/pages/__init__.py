"""The content of reports: a page for each kind of result, as a reports.document.Report."""
