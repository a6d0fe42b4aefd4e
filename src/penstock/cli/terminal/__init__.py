"""What the commands share: options, output, formatting, and the question before something is removed."""
