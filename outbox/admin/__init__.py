"""What an operator does: the actions under the command line and the web page."""
