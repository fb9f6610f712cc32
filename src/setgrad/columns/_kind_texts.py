"""The kinds of columns for people, without what reads them, which needs PyArrow."""

from __future__ import annotations

# The names that `columns=` of `fit` takes; the command line has a flag for each.
KIND_TEXTS = {
    "number": "quantities",
    "boolean": "yes or no",
    "category": "one of several values; a vector is learned for each",
    "id": "ids, also those of the items, to learn a vector of each",
    "date": "dates or times",
    "text": "texts, read as words",
    "vector": "lists of numbers of one length",
    "ignore": "columns that are not used",
}
