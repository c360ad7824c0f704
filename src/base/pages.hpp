#pragma once

/// The address of a page of docs/ on the site, as a literal: SCOREMOD_PAGE("reference/ops"). There is no site yet;
/// tests/python/test_pages.py holds it to SITE of python/scoremod/pages.py.
#define SCOREMOD_SITE "https://scoremod.invalid/docs/"
#define SCOREMOD_PAGE(name) SCOREMOD_SITE name "/"
