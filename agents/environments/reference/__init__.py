"""Correct sources of the packages that `code_repair` damages. Read as text and executed to know the right results."""
