#pragma once

/// The command that prints a page of docs/, as a literal: SCOREMOD_PAGE("reference/ops"). The Python package has the
/// command and the pages; without it a reader finds the page below docs/ of the sources, under the same name.
#define SCOREMOD_PAGE(name) "`scoremod docs " name "`"
