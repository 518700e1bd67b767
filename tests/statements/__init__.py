"""The sentences of pages that have numbers of ours, made from the records, by page."""
