"""Other people's ways of doing what setgrad does, written plainly, to be measured beside it."""
