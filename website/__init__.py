"""What makes the documentation site of the pages in docs/, and the parts of pages that are generated from the code."""
