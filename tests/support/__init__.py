"""What tests of every room share."""
