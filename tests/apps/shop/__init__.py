"""An ordinary Dramatiq application. What makes it transactional is one line in its module `broker`."""
