package migrate

import (
	"io/fs"
	"strings"
	"time"
)

// files is a folder of rendered migrations, read-only and in memory.
type files []script

var (
	_ fs.ReadDirFS = files(nil)
	_ fs.StatFS    = files(nil)
)

// Open implements [fs.FS].
func (f files) Open(name string) (fs.File, error) {
	for _, s := range f {
		if s.name == name {
			return &file{script: s, Reader: strings.NewReader(s.text)}, nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadDir implements [fs.ReadDirFS]; there is one folder.
func (f files) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	entries := make([]fs.DirEntry, len(f))
	for i, s := range f {
		entries[i] = fs.FileInfoToDirEntry(info{s})
	}
	return entries, nil
}

// Stat makes fs.Stat(f, ".") work, which fs.Glob and goose ask for.
func (f files) Stat(name string) (fs.FileInfo, error) {
	if name == "." {
		return folder{}, nil
	}
	for _, s := range f {
		if s.name == name {
			return info{s}, nil
		}
	}
	return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

type file struct {
	script
	*strings.Reader
}

func (f *file) Stat() (fs.FileInfo, error) { return info{f.script}, nil }
func (f *file) Close() error               { return nil }

type info struct{ script }

func (i info) Name() string     { return i.name }
func (i info) Size() int64      { return int64(len(i.text)) }
func (info) Mode() fs.FileMode  { return 0o444 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

type folder struct{}

func (folder) Name() string       { return "." }
func (folder) Size() int64        { return 0 }
func (folder) Mode() fs.FileMode  { return fs.ModeDir | 0o555 }
func (folder) ModTime() time.Time { return time.Time{} }
func (folder) IsDir() bool        { return true }
func (folder) Sys() any           { return nil }
